"""What a flow leaves out of its copies, masks or encrypts in them: rules by topic, and their effect on a record."""
