"""Engines of images: policies that say which images the next denoising step is of, one file each."""
