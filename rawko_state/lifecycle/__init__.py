"""Operations on a store: resuming, moving, cleaning up."""
