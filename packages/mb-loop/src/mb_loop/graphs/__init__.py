"""CUDA graphs: when they are captured, and again (`capture.py`), and how (`megatron.py`)."""
