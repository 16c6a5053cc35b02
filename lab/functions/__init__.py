"""Lambda functions under the real runtime interface client, and the schedules that start some of them."""
