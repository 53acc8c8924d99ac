"""Extensions: features that no other room imports. Each comes by a hook that code outside the tree has too."""
