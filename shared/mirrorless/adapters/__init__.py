"""Where sockets are opened: Kafka, DynamoDB, Secrets Manager, CloudWatch."""
