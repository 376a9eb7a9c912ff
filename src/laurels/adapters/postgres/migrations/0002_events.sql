-- Events from and to Kafka.

-- How the events of a pod's games are read. `terms` is JSON.
CREATE TABLE schemas (
    pod_id     text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    version    text COLLATE "C" NOT NULL,
    state      text NOT NULL,
    terms      text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (pod_id, version)
);

-- Dead letters that were counted after all, by their partition and offset.
CREATE TABLE replays (
    pod_id      text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    place       text COLLATE "C" NOT NULL,
    outcome     text NOT NULL,
    replayed_at bigint NOT NULL,
    PRIMARY KEY (pod_id, place)
);

-- Whether its end and its rewards were published.
ALTER TABLE periods ADD COLUMN published boolean NOT NULL DEFAULT false;
CREATE INDEX periods_unpublished ON periods (id) WHERE frozen_at IS NOT NULL AND NOT published;
