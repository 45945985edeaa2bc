"""A folder of images: its layout, its table of labels, and the dataset made from them."""
