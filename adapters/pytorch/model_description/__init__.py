"""A torch model's layers in the words of every framework: their order, roles and layouts."""
