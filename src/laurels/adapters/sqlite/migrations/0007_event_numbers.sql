-- The number of an event is given once, also after the last events were pruned: others know events by it.
INSERT INTO counters (name, value) VALUES ('event', max(
    (SELECT coalesce(max(seq), 0) FROM events),
    (SELECT coalesce(max(closed_seq), 0) FROM periods),
    (SELECT coalesce(max(CAST(value AS INTEGER)), 0) FROM facts WHERE name = 'published_events'),
    (SELECT coalesce(max(json_extract(value, '$.seq')), 0) FROM facts WHERE name LIKE 'pruned/%')
));

-- What is to be sent to each receiver, by itself.
CREATE INDEX outbox_due_of_pod ON outbox (pod_id, due_at, id) WHERE delivered_at IS NULL;
DROP INDEX outbox_due;
