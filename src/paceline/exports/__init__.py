"""Trained models for other tools: ONNX, MLflow, text and Vowpal Wabbit. Runs in MLflow."""
