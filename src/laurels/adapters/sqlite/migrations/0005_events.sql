-- Events from and to Kafka: schemas, dead letters that were replayed, and which period ends were published.
CREATE TABLE schemas (
    pod_id     TEXT NOT NULL REFERENCES pods (pod_id),
    version    TEXT NOT NULL,
    state      TEXT NOT NULL,
    terms      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE replays (
    pod_id      TEXT NOT NULL REFERENCES pods (pod_id),
    place       TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    replayed_at INTEGER NOT NULL,
    PRIMARY KEY (pod_id, place)
) STRICT, WITHOUT ROWID;

ALTER TABLE periods ADD COLUMN published INTEGER NOT NULL DEFAULT 0;
CREATE INDEX periods_unpublished ON periods (id) WHERE frozen_at IS NOT NULL AND published = 0;
