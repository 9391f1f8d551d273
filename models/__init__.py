"""Model families. Each folder holds a configuration, parameter descriptions, and a pure forward pass; none knows the engine."""
