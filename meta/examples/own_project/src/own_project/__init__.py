"""A model, data, loss and callback of a project, trained by `mb`."""
