"""What is in a file: child processes that open it, and the LLM that reads what they found."""
