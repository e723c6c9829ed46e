"""What is inside a model, and inside a dataset?"""
