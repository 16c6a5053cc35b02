"""dynamodb."""
