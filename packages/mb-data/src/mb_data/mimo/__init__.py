"""Generated images with captions, for vision-language models: the section and the dataset."""
