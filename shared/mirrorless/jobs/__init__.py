"""The parts that all jobs share: request, plan, files, progress, and the copy of one lane."""
