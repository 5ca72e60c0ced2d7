"""Generated images with captions, for vision-language models.

`config.py` is the section, and `synthetic_images.py` the dataset.
"""
