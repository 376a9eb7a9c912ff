-- Instants are microseconds since 1970. Ids compare by their UTF-8 bytes, as everywhere in Laurels.

CREATE TABLE pods (
    pod_id     text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    created_at bigint NOT NULL
);

-- A key is shown once and not kept: only its SHA-256 is.
CREATE TABLE keys (
    key_id     text COLLATE "C" PRIMARY KEY,
    pod_id     text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    role       text NOT NULL,
    label      text,
    digest     bytea NOT NULL,
    created_at bigint NOT NULL,
    revoked_at bigint
);

CREATE TABLE boards (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uuid        text COLLATE "C" NOT NULL UNIQUE,
    pod_id      text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    name        text NOT NULL,
    rule        text NOT NULL,
    sort_order  text NOT NULL,
    ties        text NOT NULL,
    capacity    bigint,
    min_score   double precision,
    max_score   double precision,
    public      boolean NOT NULL,
    windows     text NOT NULL,  -- JSON list
    segments    text NOT NULL,  -- JSON list
    start_at    bigint,
    end_at      bigint,
    archived_at bigint,
    created_at  bigint NOT NULL,
    revision    bigint NOT NULL,
    metadata    text,           -- JSON object; text, for jsonb would change it
    grace_s     bigint NOT NULL,
    flush_ms    bigint,
    rewards     text NOT NULL,  -- JSON list
    keep_events_days  bigint,
    keep_periods_days bigint,
    pruned_before     bigint
);

CREATE TABLE periods (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    board_id    bigint NOT NULL REFERENCES boards (id),
    window_name text NOT NULL,
    name        text NOT NULL,
    start_at    bigint,
    end_at      bigint,
    state       text NOT NULL DEFAULT 'open',    -- open, closed, frozen, pruned
    terms       text,                            -- JSON: what the final ranks are made with, from `closed` on
    total_users bigint,
    frozen_at   bigint,
    swept       boolean NOT NULL DEFAULT false,  -- its rows in `scores` are gone, for `finals` stands in their place
    UNIQUE (board_id, name)
);

CREATE INDEX periods_of_window ON periods (board_id, window_name, start_at);
CREATE INDEX periods_live ON periods (board_id) WHERE state IN ('open', 'closed');
CREATE INDEX periods_unswept ON periods (frozen_at) WHERE state = 'frozen' AND NOT swept;

-- Every accepted submission, once. A voided event no longer counts and its id stays taken. Boards and periods are never
-- deleted, so the two large tables do without foreign keys, which would cost a look-up a row.
CREATE TABLE events (
    seq         bigint PRIMARY KEY,
    board_id    bigint NOT NULL,
    event_id    text COLLATE "C" NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL CHECK (score > '-Infinity' AND score < 'Infinity'),
    at          bigint NOT NULL,
    stamped     boolean NOT NULL,  -- `at` is the server's clock, not the sender's word
    received_at bigint NOT NULL,
    voided_by   bigint,
    metadata    text,              -- canonical JSON object
    ahead       boolean NOT NULL DEFAULT false,  -- its time was to come, by the clock of this server, which is one for all of ours
    xact        bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    UNIQUE (board_id, event_id)
);

CREATE SEQUENCE event_seqs OWNED BY events.seq;
CREATE INDEX events_by_user ON events (board_id, user_id, seq);
-- What was changed lately: see Ledger.position. New entries are always at its end.
CREATE INDEX events_by_xact ON events (xact, seq);

-- The only events that can lie beyond a reset that is moved to a moment from now.
CREATE INDEX events_ahead ON events (board_id, at) WHERE ahead;

-- The fold of a user's events in a period. score NULL: removed; the version stays as a guard.
CREATE TABLE scores (
    period_id   bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision,
    achieved_at bigint,
    total       numeric,           -- increment: the exact sum
    moved       boolean NOT NULL,  -- increment: whether an event other than 0 was counted
    version     bigint NOT NULL,
    PRIMARY KEY (period_id, user_id)
-- Room for the next version of a row on its own page: an update then touches no index.
) WITH (fillfactor = 80);

CREATE SEQUENCE versions;

-- What the events of a user in an open period added up to that are not kept any more.
CREATE TABLE bases (
    period_id   bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL,
    achieved_at bigint NOT NULL,
    total       text,
    moved       boolean NOT NULL,
    PRIMARY KEY (period_id, user_id)
);

-- The final ranks of frozen periods; `place` is the ordinal one.
CREATE TABLE finals (
    period_id   bigint NOT NULL,
    place       bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL,
    achieved_at bigint NOT NULL,
    competition bigint NOT NULL,
    dense       bigint NOT NULL,
    PRIMARY KEY (period_id, place)
);

CREATE UNIQUE INDEX finals_by_user ON finals (user_id, period_id);

-- Prizes that were won. `prize` is JSON.
CREATE TABLE grants (
    period_id  bigint NOT NULL,
    place      bigint NOT NULL,
    reward     text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    rank       bigint NOT NULL,
    score      double precision NOT NULL,
    prize      text NOT NULL,
    granted_at bigint NOT NULL,
    claimed_at bigint,
    claimed_by text,
    PRIMARY KEY (period_id, place, reward)
);

CREATE INDEX grants_by_user ON grants (user_id, period_id);

-- Where the messages of a pod go. The secret signs them.
CREATE TABLE webhooks (
    pod_id     text COLLATE "C" PRIMARY KEY REFERENCES pods (pod_id),
    url        text NOT NULL,
    secret     text NOT NULL,
    created_at bigint NOT NULL
);

-- What others are to be told. due_at NULL: not before its period is frozen.
CREATE TABLE outbox (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id   text COLLATE "C" NOT NULL UNIQUE,
    pod_id       text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    period_id    bigint NOT NULL,
    kind         text NOT NULL,
    body         text NOT NULL,
    created_at   bigint NOT NULL,
    due_at       bigint,
    attempts     bigint NOT NULL DEFAULT 0,
    error        text,
    delivered_at bigint
);

CREATE INDEX outbox_due ON outbox (due_at) WHERE delivered_at IS NULL;
CREATE INDEX outbox_held ON outbox (period_id) WHERE due_at IS NULL;

-- What is done once for all servers: who does it until when, and what came of the last run.
CREATE TABLE jobs (
    name         text PRIMARY KEY,
    owner        text,
    leased_until timestamptz NOT NULL,
    started_at   bigint NOT NULL,
    finished_at  bigint,
    result       text,
    error        text,
    runs         bigint NOT NULL
);

-- What people did to stored scores: who, what, when.
CREATE TABLE acts (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    board_id bigint NOT NULL REFERENCES boards (id),
    act_id   text COLLATE "C" NOT NULL,
    kind     text NOT NULL,
    user_id  text COLLATE "C",
    by_key   text NOT NULL,
    at       bigint NOT NULL,
    xact     bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    UNIQUE (board_id, act_id)
);

CREATE INDEX acts_by_xact ON acts (xact);

-- `registry`: grows with every change of pods, keys and boards.
CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
);

INSERT INTO counters (name, value) VALUES ('registry', 0);

-- `ledger_id`: a name for this ledger, so that an index never mixes it up with another.
CREATE TABLE facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);

INSERT INTO facts (name, value) VALUES ('ledger_id', substr(replace(gen_random_uuid()::text, '-', ''), 1, 16));

CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- The double nearest to a sum; beyond the largest one it stays there, and what is too small is zero.
CREATE FUNCTION nearest_double(total numeric) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN abs(total) <= 2.47032822920623272088284396434110686182e-324 THEN 0
                ELSE least(greatest(total, -1.7976931348623157e308), 1.7976931348623157e308)::double precision END
$$;

-- Stores and folds a batch: the whole of Ledger.record but the comparison of events that were there before, in one
-- statement of the client. Each step takes its locks in the order of the keys, and the steps follow each other, so two
-- batches wait for each other in one direction only: boards, events, new rows, rows.
--
-- The error LRL02 says that a board is not as the caller knows it. Whoever changes one holds its lock alone (lock_board),
-- so which periods an event counts in is decided by what the board is at its commit.
--
-- In: one element an event, numbered from 1, and one an event and period that it counts in (a place). `signs` is 1
-- where lower scores are better, else -1. An event that is not to be stored is only compared.
-- Out: one row an event and period. Where `accepted` is false, `old_*` is the event that had the id before.
CREATE FUNCTION record_events(
    board_ids bigint[], revisions bigint[], event_ids text[], user_ids text[], event_scores double precision[],
    event_ats bigint[], stamps boolean[], received bigint[], metadatas text[], stored boolean[],
    place_ns int[], place_periods bigint[], place_users text[], place_scores double precision[],
    place_amounts text[], place_ats bigint[], rules text[], signs double precision[]
) RETURNS TABLE (
    n int, accepted boolean,
    old_user_id text, old_score double precision, old_at bigint, old_stamped boolean, old_metadata text,
    period_id bigint,
    before_score double precision, before_at bigint, before_total text, before_moved boolean, before_version bigint,
    after_score double precision, after_at bigint, after_total text, after_moved boolean, after_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    is_new boolean[];
    before_rows scores[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1279348562, b.board_id::int)
    FROM (SELECT DISTINCT board_id FROM unnest(board_ids) AS k (board_id) ORDER BY board_id) AS b;
    PERFORM FROM (SELECT DISTINCT board_id, revision FROM unnest(board_ids, revisions) AS k (board_id, revision)) AS k
    JOIN boards b ON b.id = k.board_id WHERE b.revision <> k.revision;
    IF FOUND THEN
        RAISE EXCEPTION 'a board was changed' USING ERRCODE = 'LRL02';
    END IF;

    -- 1. The events. Of two with the same id in one batch the first counts.
    -- They are numbered in the order of the batch and stored in the order of their keys.
    WITH input AS MATERIALIZED (
        SELECT i.*, nextval('event_seqs') AS seq
        FROM unnest(board_ids, event_ids, user_ids, event_scores, event_ats, stamps, received, metadatas, stored)
            WITH ORDINALITY AS i (board_id, event_id, user_id, score, at, stamped, received_at, metadata, stored, n)
    ), inserted AS (
        INSERT INTO events AS e (seq, board_id, event_id, user_id, score, at, stamped, received_at, metadata, ahead)
        SELECT i.seq, i.board_id, i.event_id, i.user_id, i.score, i.at, i.stamped, i.received_at, i.metadata,
               i.at > now_us()
        FROM input i WHERE i.stored ORDER BY i.board_id, i.event_id COLLATE "C", i.n
        ON CONFLICT (board_id, event_id) DO NOTHING
        RETURNING e.board_id, e.event_id
    ), numbered AS (
        SELECT i.n, i.board_id, i.event_id,
               i.stored AND row_number() OVER (
                   PARTITION BY i.board_id, i.event_id COLLATE "C", i.stored ORDER BY i.n
               ) = 1 AS is_first
        FROM input i
    )
    SELECT array_agg(w.is_first AND d.event_id IS NOT NULL ORDER BY w.n) INTO is_new
    FROM numbered w LEFT JOIN inserted d ON d.board_id = w.board_id AND d.event_id = w.event_id;

    -- 2. A row for every user who has none yet.
    INSERT INTO scores AS s (period_id, user_id, moved, version)
    SELECT DISTINCT p.period_id, p.user_id COLLATE "C", false, 0
    FROM unnest(place_ns, place_periods, place_users) AS p (n, period_id, user_id)
    WHERE is_new[p.n]
    ORDER BY 1, 2
    ON CONFLICT (period_id, user_id) DO NOTHING;

    -- 3. The rows as they are, locked.
    SELECT array_agg(locked.s) INTO before_rows FROM (
        SELECT s FROM scores s JOIN (
            SELECT DISTINCT p.period_id, p.user_id COLLATE "C" AS user_id
            FROM unnest(place_ns, place_periods, place_users) AS p (n, period_id, user_id)
            WHERE is_new[p.n]
        ) wanted ON s.period_id = wanted.period_id AND s.user_id = wanted.user_id
        ORDER BY s.period_id, s.user_id
        FOR NO KEY UPDATE OF s
    ) AS locked;

    -- 4. The fold. What each rule means is said in laurels.core.scores.
    WITH fresh AS (
        SELECT p.period_id, p.user_id COLLATE "C" AS user_id, p.score, p.amount::numeric AS amount, p.at, p.rule, p.sign
        FROM unnest(place_ns, place_periods, place_users, place_scores, place_amounts, place_ats, rules, signs)
            AS p (n, period_id, user_id, score, amount, at, rule, sign)
        WHERE is_new[p.n]
    ), sums AS (
        SELECT f.period_id, f.user_id, sum(f.amount) AS amount, bool_or(f.score <> 0) AS moved,
               max(f.at) FILTER (WHERE f.score <> 0) AS moved_at, min(f.at) AS first_at
        FROM fresh f WHERE f.rule = 'increment' GROUP BY f.period_id, f.user_id
    ), chosen AS (
        SELECT DISTINCT ON (c.period_id, c.user_id) c.period_id, c.user_id, c.score, c.at FROM (
            SELECT f.period_id, f.user_id, f.score, f.at, f.rule, f.sign FROM fresh f WHERE f.rule <> 'increment'
            UNION ALL
            SELECT r.period_id, r.user_id, r.score, r.achieved_at, f.rule, f.sign
            FROM unnest(before_rows) r
            JOIN (SELECT DISTINCT period_id, user_id, rule, sign FROM fresh WHERE rule <> 'increment') f
                ON f.period_id = r.period_id AND f.user_id = r.user_id
            WHERE r.score IS NOT NULL
        ) c
        ORDER BY c.period_id, c.user_id, CASE WHEN c.rule = 'latest' THEN -c.at END, c.score * c.sign, c.at
    ), folded AS (
        SELECT c.period_id, c.user_id, c.score, c.at AS achieved_at, NULL::numeric AS total, false AS moved
        FROM chosen c
        UNION ALL
        SELECT r.period_id, r.user_id, nearest_double(coalesce(r.total, 0) + s.amount),
               CASE WHEN r.score IS NULL THEN coalesce(s.moved_at, s.first_at)
                    WHEN s.moved AND r.moved THEN greatest(r.achieved_at, s.moved_at)
                    WHEN s.moved THEN s.moved_at
                    WHEN r.moved THEN r.achieved_at
                    ELSE least(r.achieved_at, s.first_at) END,
               coalesce(r.total, 0) + s.amount, r.moved OR s.moved
        FROM unnest(before_rows) r JOIN sums s ON s.period_id = r.period_id AND s.user_id = r.user_id
    )
    UPDATE scores AS s
    SET score = f.score, achieved_at = f.achieved_at, total = f.total, moved = f.moved, version = nextval('versions')
    FROM folded f
    WHERE s.period_id = f.period_id AND s.user_id = f.user_id
      AND (s.score, s.achieved_at, s.total, s.moved) IS DISTINCT FROM (f.score, f.achieved_at, f.total, f.moved);

    -- 5. What became of each.
    RETURN QUERY
    SELECT i.n::int, is_new[i.n], e.user_id, e.score, e.at, e.stamped, e.metadata, p.period_id,
           b.score, b.achieved_at, b.total::text, b.moved, b.version,
           r.score, r.achieved_at, r.total::text, r.moved, r.version
    FROM unnest(board_ids, event_ids, user_ids) WITH ORDINALITY AS i (board_id, event_id, user_id, n)
    LEFT JOIN unnest(place_ns, place_periods) AS p (n, period_id) ON p.n = i.n
    LEFT JOIN events e ON NOT is_new[i.n] AND e.board_id = i.board_id AND e.event_id = i.event_id
    LEFT JOIN unnest(before_rows) b ON b.period_id = p.period_id AND b.user_id = i.user_id
    LEFT JOIN scores r ON r.period_id = p.period_id AND r.user_id = i.user_id
    ORDER BY i.n, p.period_id;
END $$;

-- Takes a user off a board: voids the events, clears the rows of open periods and gives them. Once an act; the second time it only gives
-- the rows. The error LRL01 says that there is nothing to remove.
CREATE FUNCTION remove_user(board bigint, act text, act_kind text, removed_user text, by_whom text, act_at bigint)
RETURNS SETOF scores LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    new_act bigint;
    ranked boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1279348562, board::int);
    INSERT INTO acts (board_id, act_id, kind, user_id, by_key, at)
    VALUES (board, act, act_kind, removed_user, by_whom, act_at)
    ON CONFLICT (board_id, act_id) DO NOTHING RETURNING id INTO new_act;
    IF new_act IS NOT NULL THEN
        SELECT coalesce(bool_or(locked.score IS NOT NULL), false) INTO ranked FROM (
            SELECT s.score FROM scores s
            WHERE s.user_id = removed_user AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open')
            ORDER BY s.period_id FOR NO KEY UPDATE OF s
        ) AS locked;
        IF NOT ranked THEN
            RAISE EXCEPTION 'nothing to remove' USING ERRCODE = 'LRL01';
        END IF;
        UPDATE events SET voided_by = new_act WHERE board_id = board AND user_id = removed_user AND voided_by IS NULL;
        -- After the events: whoever prunes them holds them until what they add up to is written.
        DELETE FROM bases b
        WHERE b.user_id = removed_user AND b.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open');
        UPDATE scores s
        SET score = NULL, achieved_at = NULL, total = NULL, moved = false, version = nextval('versions')
        WHERE s.user_id = removed_user AND s.score IS NOT NULL
          AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open');
    END IF;
    RETURN QUERY
    SELECT s.* FROM scores s
    WHERE s.user_id = removed_user AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open')
    ORDER BY s.period_id;
END $$;
