"""What AWS has where a deployment goes, read before it by the lookup roles of `cdk bootstrap`, which change nothing."""
