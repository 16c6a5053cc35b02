"""AWS services beside DynamoDB: Lambda, STS, S3, EMR Serverless, CloudFormation, Secrets Manager, CloudWatch."""
