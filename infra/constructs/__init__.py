"""constructs."""
