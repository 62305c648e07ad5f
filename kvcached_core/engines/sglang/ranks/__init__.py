"""Several ranks: what they tell one another, so that each takes the same decisions.

docs/transactions.md says how, under "SGLang"."""
