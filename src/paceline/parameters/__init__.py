"""Where parameters live and how gradients change them."""
