"""Where tasks come from, and what an answer is worth."""
