"""From files to pixels: listing, decoding, reading ahead, and a cache of decoded images."""
