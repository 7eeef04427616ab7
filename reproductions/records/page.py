def write(results, file):
    pass
