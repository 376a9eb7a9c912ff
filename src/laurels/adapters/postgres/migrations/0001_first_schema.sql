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
    state       text NOT NULL DEFAULT 'open',    -- open, closed, frozen, pruned; refreezing, superseded, discarded
    terms       text,                            -- JSON: what the final ranks are made with, from `closed` on
    total_users bigint,
    frozen_at   bigint,
    swept       boolean NOT NULL DEFAULT false,  -- its rows in `scores` are gone, for `finals` stands in their place
    replaces    bigint,                          -- the period whose final ranks it sets right
    closed_seq  bigint,                          -- the last event that came before it was closed
    UNIQUE (board_id, name)
);

CREATE INDEX periods_of_window ON periods (board_id, window_name, start_at);
CREATE INDEX periods_live ON periods (board_id) WHERE state IN ('open', 'closed');
CREATE INDEX periods_unswept ON periods (frozen_at) WHERE state = 'frozen' AND NOT swept;
CREATE INDEX periods_replaced ON periods (replaces) WHERE replaces IS NOT NULL;

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
CREATE INDEX events_voided ON events (voided_by) WHERE voided_by IS NOT NULL;

-- The fold of a user's events in a period. score NULL: removed; the version stays as a guard.
CREATE TABLE scores (
    period_id   bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision,
    achieved_at bigint,
    total       numeric,           -- increment: the exact sum
    moved       boolean NOT NULL,  -- increment: whether an event other than 0 was counted
    version     bigint NOT NULL,
    hidden      smallint NOT NULL DEFAULT 0,  -- 1: left out of the ranks; 2: of all but the user's own view
    segments    text,              -- those, beside the world, that the user is in: `region:eu circle:a`
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
    segment     text COLLATE "C" NOT NULL,
    place       bigint NOT NULL,
    user_id     text COLLATE "C" NOT NULL,
    score       double precision NOT NULL,
    achieved_at bigint NOT NULL,
    competition bigint NOT NULL,
    dense       bigint NOT NULL,
    PRIMARY KEY (period_id, segment, place)
);

CREATE UNIQUE INDEX finals_by_user ON finals (user_id, period_id, segment);

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

-- What people did to stored scores: who, what, when, why. board_id 0: all boards of the pod.
CREATE TABLE acts (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pod_id    text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    board_id  bigint NOT NULL,
    act_id    text COLLATE "C" NOT NULL,
    kind      text NOT NULL,
    user_id   text COLLATE "C",
    by_key    text NOT NULL,
    at        bigint NOT NULL,
    reason    text,
    detail    text,    -- JSON object
    events    bigint NOT NULL DEFAULT 0,
    done_at   bigint,  -- NULL: it is going on
    undone_by bigint,
    UNIQUE (pod_id, board_id, act_id)
);

CREATE INDEX acts_of_board ON acts (board_id, at);
CREATE INDEX acts_unfinished ON acts (at) WHERE done_at IS NULL;
CREATE INDEX acts_of_user ON acts (user_id);

-- Whose rows were changed by something other than an event of theirs: see Ledger.changes.
CREATE TABLE touches (
    xact     bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    board_id bigint NOT NULL,
    user_id  text COLLATE "C" NOT NULL
);

CREATE INDEX touches_by_xact ON touches (xact);
CREATE INDEX touches_by_user ON touches (user_id);

-- What a pod knows of a user. `circles` is as it stands in `scores.segments`.
CREATE TABLE profiles (
    pod_id       text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    user_id      text COLLATE "C" NOT NULL,
    display_name text,
    avatar_url   text,
    region       text COLLATE "C",
    region_at    bigint NOT NULL DEFAULT 0,  -- an older word on the region changes nothing
    circles      text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (pod_id, user_id)
) WITH (fillfactor = 80);

CREATE INDEX profiles_named ON profiles (pod_id) WHERE display_name IS NOT NULL OR avatar_url IS NOT NULL;

-- Who is hidden, for rows that are made later. board_id 0: on all boards of the pod.
CREATE TABLE hides (
    pod_id   text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    user_id  text COLLATE "C" NOT NULL,
    board_id bigint NOT NULL,
    hidden   smallint NOT NULL,
    PRIMARY KEY (pod_id, user_id, board_id)
);

-- Whose events of an earlier time are not taken any more. user_id: until the last traces are swept.
CREATE TABLE erased (
    pod_id  text COLLATE "C" NOT NULL REFERENCES pods (pod_id),
    digest  bytea NOT NULL,
    at      bigint NOT NULL,
    user_id text COLLATE "C",
    PRIMARY KEY (pod_id, digest)
);

CREATE INDEX erased_unswept ON erased (at) WHERE user_id IS NOT NULL;

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

-- The segments of a board's kinds that a user is in, beside the world. `kinds` is as it stands in `boards.segments`.
CREATE FUNCTION segments_of(kinds text, region text, circles text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif(concat_ws(' ', CASE WHEN kinds LIKE '%"region"%' THEN 'region:' || region END,
                                 CASE WHEN kinds LIKE '%"circle"%' THEN nullif(circles, '') END), '')
$$;

-- Whoever is hidden from all (1) stays so, whatever else was said.
CREATE FUNCTION hidden_on(pod text, board bigint, who text) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT coalesce(min(h.hidden), 0::smallint) FROM hides h
    WHERE h.pod_id = pod AND h.user_id = who AND h.board_id IN (0, board)
$$;

-- The rows of a ranking, as somebody sees them who may be hidden.
CREATE FUNCTION ranked_rows(period bigint, segment text, viewer text) RETURNS SETOF scores LANGUAGE sql STABLE AS $$
    SELECT * FROM scores s
    WHERE s.period_id = period AND s.score IS NOT NULL AND (s.hidden = 0 OR s.user_id = viewer)
      AND (segment = 'global' OR position(' ' || segment || ' ' IN ' ' || s.segments || ' ') > 0)
$$;

-- Puts users, whose profiles the caller has locked, into the segments that those say, in every open period; gives the
-- rows that changed. A period can't be closed until this is done.
CREATE FUNCTION move_users(pods text[], people text[]) RETURNS SETOF scores LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    open_periods bigint[];
    changed scores[];
BEGIN
    SELECT array_agg(locked.id) INTO open_periods FROM (
        SELECT p.id FROM periods p JOIN boards b ON b.id = p.board_id
        WHERE b.pod_id = ANY (pods) AND b.segments <> '["global"]' AND p.state = 'open'
        ORDER BY p.id FOR SHARE OF p
    ) AS locked;
    PERFORM FROM scores s
    WHERE s.period_id = ANY (open_periods) AND s.user_id = ANY (people)
    ORDER BY s.period_id, s.user_id FOR NO KEY UPDATE;
    WITH moved AS (
        UPDATE scores s SET segments = segments_of(b.segments, f.region, f.circles), version = nextval('versions')
        FROM unnest(pods, people) AS m (pod_id, user_id)
        JOIN profiles f ON f.pod_id = m.pod_id AND f.user_id = m.user_id
        JOIN boards b ON b.pod_id = m.pod_id
        JOIN periods p ON p.board_id = b.id
        WHERE s.period_id = p.id AND s.user_id = m.user_id AND p.id = ANY (open_periods)
          AND s.segments IS DISTINCT FROM segments_of(b.segments, f.region, f.circles)
        RETURNING s
    )
    SELECT array_agg(moved.s) INTO changed FROM moved;
    INSERT INTO touches (board_id, user_id)
    SELECT DISTINCT p.board_id, c.user_id FROM unnest(changed) c JOIN periods p ON p.id = c.period_id;
    RETURN QUERY SELECT * FROM unnest(changed);
END $$;

-- Stores and folds a batch: the whole of Ledger.record but the comparison of events that were there before, in one
-- statement of the client. Each step takes its locks in the order of the keys, and the steps follow each other, so two
-- batches wait for each other in one direction only: boards, events, profiles, new rows, rows.
--
-- The error LRL02 says that a board is not as the caller knows it. Whoever changes one holds its lock alone (lock_board),
-- so which periods an event counts in is decided by what the board is at its commit.
--
-- In: one element an event, numbered from 1, and one an event and period that it counts in (a place). `signs` is 1
-- where lower scores are better, else -1. An event that is not to be stored is only compared.
-- Out: one row an event and period. Where `accepted` is false, `old_*` is the event that had the id before. Rows that
-- moved with the region that an event told have the number 0, and their user as `old_user_id`.
CREATE FUNCTION record_events(
    board_ids bigint[], revisions bigint[], event_ids text[], user_ids text[], event_scores double precision[],
    event_ats bigint[], stamps boolean[], received bigint[], metadatas text[], stored boolean[],
    place_ns int[], place_periods bigint[], place_users text[], place_scores double precision[],
    place_amounts text[], place_ats bigint[], rules text[], signs double precision[], regions text[]
) RETURNS TABLE (
    n int, accepted boolean, erased boolean,
    old_user_id text, old_score double precision, old_at bigint, old_stamped boolean, old_metadata text,
    period_id bigint,
    before_score double precision, before_at bigint, before_total text, before_moved boolean, before_version bigint,
    after_score double precision, after_at bigint, after_total text, after_moved boolean, after_version bigint,
    after_hidden smallint, after_segments text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    is_new boolean[];
    is_gone boolean[];
    pods text[];
    people text[];
    moved_pods text[];
    moved_people text[];
    moved_rows scores[];
    before_rows scores[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1279348562, b.board_id::int)
    FROM (SELECT DISTINCT board_id FROM unnest(board_ids) AS k (board_id) ORDER BY board_id) AS b;
    PERFORM FROM (SELECT DISTINCT board_id, revision FROM unnest(board_ids, revisions) AS k (board_id, revision)) AS k
    JOIN boards b ON b.id = k.board_id WHERE b.revision <> k.revision;
    IF FOUND THEN
        RAISE EXCEPTION 'a board was changed' USING ERRCODE = 'LRL02';
    END IF;

    -- 0. Events of users who were erased since.
    IF EXISTS (SELECT FROM erased) THEN
        SELECT array_agg(coalesce(least(i.at, i.received_at) < e.at, false) ORDER BY i.n) INTO is_gone
        FROM unnest(board_ids, user_ids, event_ats, received) WITH ORDINALITY AS i (board_id, user_id, at, received_at, n)
        JOIN boards b ON b.id = i.board_id
        LEFT JOIN erased e ON e.pod_id = b.pod_id
            AND e.digest = sha256(convert_to(b.pod_id || '/' || i.user_id, 'UTF8'));
        SELECT array_agg(i.stored AND NOT is_gone[i.n] ORDER BY i.n) INTO stored
        FROM unnest(stored) WITH ORDINALITY AS i (stored, n);
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

    -- 2. Whose region is told, and who is new to a board with segments: these profiles must not change meanwhile.
    SELECT array_agg(w.pod_id ORDER BY w.pod_id, w.user_id), array_agg(w.user_id ORDER BY w.pod_id, w.user_id)
    INTO pods, people FROM (
        SELECT b.pod_id, i.user_id COLLATE "C" AS user_id
        FROM unnest(board_ids, user_ids, regions) WITH ORDINALITY AS i (board_id, user_id, region, n)
        JOIN boards b ON b.id = i.board_id
        WHERE is_new[i.n] AND i.region IS NOT NULL
        UNION
        SELECT b.pod_id, p.user_id COLLATE "C"
        FROM unnest(place_ns, place_periods, place_users) AS p (n, period_id, user_id)
        JOIN boards b ON b.id = board_ids[p.n] AND b.segments <> '["global"]'
        WHERE is_new[p.n]
          AND NOT EXISTS (SELECT FROM scores s WHERE s.period_id = p.period_id AND s.user_id = p.user_id COLLATE "C")
    ) AS w;
    IF pods IS NOT NULL THEN
        INSERT INTO profiles (pod_id, user_id) SELECT * FROM unnest(pods, people) ORDER BY 1, 2 ON CONFLICT DO NOTHING;
        PERFORM FROM profiles f JOIN unnest(pods, people) AS w (pod_id, user_id)
            ON f.pod_id = w.pod_id AND f.user_id = w.user_id
        ORDER BY f.pod_id, f.user_id FOR NO KEY UPDATE OF f;
        WITH told AS (
            SELECT DISTINCT ON (b.pod_id, i.user_id) b.pod_id, i.user_id, i.region, i.at
            FROM unnest(board_ids, user_ids, event_ats, regions) WITH ORDINALITY AS i (board_id, user_id, at, region, n)
            JOIN boards b ON b.id = i.board_id
            WHERE is_new[i.n] AND i.region IS NOT NULL
            ORDER BY b.pod_id, i.user_id, i.at DESC, i.region COLLATE "C" DESC
        ), before AS (
            SELECT f.pod_id, f.user_id, f.region, t.region AS told, t.at
            FROM told t JOIN profiles f ON f.pod_id = t.pod_id AND f.user_id = t.user_id
            WHERE (t.at, t.region COLLATE "C") > (f.region_at, coalesce(f.region, ''))
        ), changed AS (
            UPDATE profiles f SET region = o.told, region_at = o.at
            FROM before o WHERE f.pod_id = o.pod_id AND f.user_id = o.user_id
        )
        SELECT array_agg(o.pod_id), array_agg(o.user_id) INTO moved_pods, moved_people
        FROM before o WHERE o.region IS DISTINCT FROM o.told;
    END IF;

    -- 3. A row for every user who has none yet; then the rows as they are, locked, with those that move.
    INSERT INTO scores AS s (period_id, user_id, moved, version, hidden, segments)
    SELECT DISTINCT p.period_id, p.user_id COLLATE "C", false, 0, hidden_on(b.pod_id, b.id, p.user_id),
           segments_of(b.segments, f.region, f.circles)
    FROM unnest(place_ns, place_periods, place_users) AS p (n, period_id, user_id)
    JOIN boards b ON b.id = board_ids[p.n]
    LEFT JOIN profiles f ON b.segments <> '["global"]' AND f.pod_id = b.pod_id AND f.user_id = p.user_id COLLATE "C"
    WHERE is_new[p.n]
      AND NOT EXISTS (SELECT FROM scores s WHERE s.period_id = p.period_id AND s.user_id = p.user_id COLLATE "C")
    ORDER BY 1, 2
    ON CONFLICT (period_id, user_id) DO NOTHING;
    IF moved_pods IS NOT NULL THEN
        PERFORM FROM periods p JOIN boards b ON b.id = p.board_id
        WHERE b.pod_id = ANY (moved_pods) AND b.segments <> '["global"]' AND p.state = 'open'
        ORDER BY p.id FOR SHARE OF p;
    END IF;
    SELECT array_agg(locked.s) INTO before_rows FROM (
        SELECT s FROM scores s JOIN (
            SELECT p.period_id, p.user_id COLLATE "C" AS user_id
            FROM unnest(place_ns, place_periods, place_users) AS p (n, period_id, user_id)
            WHERE is_new[p.n]
            UNION
            SELECT p.id, m.user_id COLLATE "C"
            FROM unnest(moved_pods, moved_people) AS m (pod_id, user_id)
            JOIN boards b ON b.pod_id = m.pod_id AND b.segments <> '["global"]'
            JOIN periods p ON p.board_id = b.id AND p.state = 'open'
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
    IF moved_pods IS NOT NULL THEN
        SELECT array_agg(m) INTO moved_rows FROM move_users(moved_pods, moved_people) AS m;
    END IF;

    -- 5. What became of each.
    -- Whoever repeats a batch may not have heard of the rows that moved with it.
    IF NOT (true = ALL (is_new)) THEN
        SELECT coalesce(moved_rows, '{}') || array_agg(s) INTO moved_rows
        FROM (SELECT DISTINCT b.pod_id, i.user_id
              FROM unnest(board_ids, user_ids, regions) WITH ORDINALITY AS i (board_id, user_id, region, n)
              JOIN boards b ON b.id = i.board_id
              WHERE NOT is_new[i.n] AND i.region IS NOT NULL AND NOT coalesce(is_gone[i.n], false)) AS again
        JOIN boards b ON b.pod_id = again.pod_id AND b.segments <> '["global"]'
        JOIN periods p ON p.board_id = b.id AND p.state = 'open'
        JOIN scores s ON s.period_id = p.id AND s.user_id = again.user_id COLLATE "C";
    END IF;
    RETURN QUERY
    SELECT 0, false, false, m.user_id, NULL::double precision, NULL::bigint, NULL::boolean, NULL::text, m.period_id,
           NULL::double precision, NULL::bigint, NULL::text, NULL::boolean, NULL::bigint,
           m.score, m.achieved_at, m.total::text, m.moved, m.version, m.hidden, m.segments
    FROM unnest(moved_rows) m;
    RETURN QUERY
    SELECT i.n::int, is_new[i.n], coalesce(is_gone[i.n], false), e.user_id, e.score, e.at, e.stamped, e.metadata, p.period_id,
           b.score, b.achieved_at, b.total::text, b.moved, b.version,
           r.score, r.achieved_at, r.total::text, r.moved, r.version, r.hidden, r.segments
    FROM unnest(board_ids, event_ids, user_ids) WITH ORDINALITY AS i (board_id, event_id, user_id, n)
    LEFT JOIN unnest(place_ns, place_periods) AS p (n, period_id) ON p.n = i.n
    LEFT JOIN events e ON NOT is_new[i.n] AND e.board_id = i.board_id AND e.event_id = i.event_id
    LEFT JOIN unnest(before_rows) b ON b.period_id = p.period_id AND b.user_id = i.user_id
    LEFT JOIN scores r ON r.period_id = p.period_id AND r.user_id = i.user_id
    ORDER BY i.n, p.period_id;
END $$;

-- Takes a user off a board: voids the events, clears the rows of open periods and gives them. Once an act; the second time it only gives
-- the rows. The error LRL01 says that there is nothing to remove.
CREATE FUNCTION remove_user(
    board bigint, act text, act_kind text, removed_user text, by_whom text, act_at bigint, why text
)
RETURNS SETOF scores LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    new_act bigint;
    ranked boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1279348562, board::int);
    INSERT INTO acts (pod_id, board_id, act_id, kind, user_id, by_key, at, reason, done_at)
    SELECT b.pod_id, board, act, act_kind, removed_user, by_whom, act_at, why, act_at FROM boards b WHERE b.id = board
    ON CONFLICT (pod_id, board_id, act_id) DO NOTHING RETURNING id INTO new_act;
    IF new_act IS NOT NULL THEN
        SELECT coalesce(bool_or(locked.score IS NOT NULL), false) INTO ranked FROM (
            SELECT s.score FROM scores s
            WHERE s.user_id = removed_user AND s.period_id IN (SELECT id FROM periods WHERE board_id = board AND state = 'open')
            ORDER BY s.period_id FOR NO KEY UPDATE OF s
        ) AS locked;
        IF NOT ranked THEN
            RAISE EXCEPTION 'nothing to remove' USING ERRCODE = 'LRL01';
        END IF;
        WITH voided AS (
            UPDATE events SET voided_by = new_act
            WHERE board_id = board AND user_id = removed_user AND voided_by IS NULL RETURNING 1
        )
        UPDATE acts SET events = (SELECT count(*) FROM voided) WHERE id = new_act;
        INSERT INTO touches (board_id, user_id) VALUES (board, removed_user);
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
