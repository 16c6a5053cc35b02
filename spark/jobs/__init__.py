"""What the PySpark jobs are made of: session, driver, leases, tasks of lanes, and a folder for each job."""
