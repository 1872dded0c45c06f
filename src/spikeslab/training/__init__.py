"""The training runtime: runs, their folders, what they tell, and their reports."""
