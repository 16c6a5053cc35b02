"""The parts that all jobs share: request, plan, files, progress, cost, and the copy of one lane."""
