"""What is deployed, and out of which folder."""
