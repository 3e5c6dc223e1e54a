"""What changes a run's record, and when: the table of messages (`apply`), the table of phases, and a file per subject.

`decision` changes nothing: it is what every client concludes from the record alone.
"""
