def write_page(subjects, path, token):
    path.write_text("x")
    return path
