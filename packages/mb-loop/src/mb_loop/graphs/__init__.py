"""CUDA graphs: when steps are captured (`capture_schedule.py`), how (`megatron.py`), and when again."""
