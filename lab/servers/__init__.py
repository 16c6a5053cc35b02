"""Real servers as child processes: Kafka, DynamoDB Local, and the jars they run from."""
