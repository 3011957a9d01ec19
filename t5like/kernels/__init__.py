"""Hot loops behind plain functions: attention back ends, lean cross entropy."""
