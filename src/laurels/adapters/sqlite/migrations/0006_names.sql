-- Names can be searched by their beginning, whatever their case.
ALTER TABLE profiles ADD COLUMN name_key TEXT;
UPDATE profiles SET name_key = lower(display_name) WHERE display_name IS NOT NULL;
CREATE INDEX profiles_by_name ON profiles (pod_id, name_key) WHERE name_key IS NOT NULL;
