"""What is done with a store: going on with a task, handing it over, following it."""
