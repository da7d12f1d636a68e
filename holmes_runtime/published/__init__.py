"""Models as others publish them: folders of the transformers library with config.json and .safetensors files."""
