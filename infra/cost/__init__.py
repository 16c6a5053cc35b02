"""What a flow costs a month, beside MSK Replicator and MirrorMaker 2 on MSK Connect: a model by list prices."""
