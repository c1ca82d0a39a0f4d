"""Operations on directory trees: list, search, copy, move, remove and watch."""
