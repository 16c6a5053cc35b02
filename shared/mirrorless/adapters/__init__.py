"""The ports on real systems: Kafka, DynamoDB, other AWS services, and archives of Parquet files."""
