"""One running engine beside its neighbours, whichever engine it is: the plan of its pages, their
supply with memory, the device they lie on, and the watcher that answers for it while it sleeps."""
