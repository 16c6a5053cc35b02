"""Stages, doubles and readers that tests share."""
