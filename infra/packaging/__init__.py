"""What is deployed as code: bundles of functions, the archive of Spark jobs, and the wheels of both."""
