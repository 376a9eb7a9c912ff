-- A name for this ledger, so that an index never mixes it up with another.
CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO facts (name, value) VALUES ('ledger_id', lower(hex(randomblob(8))));
INSERT INTO counters (name, value) VALUES ('registry', 0);
