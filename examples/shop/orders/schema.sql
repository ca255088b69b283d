CREATE SCHEMA shop;

CREATE TABLE shop.orders (
  id       text COLLATE "C" PRIMARY KEY,
  customer text NOT NULL,
  cents    bigint NOT NULL CHECK (cents >= 0)
);

-- No unique constraint on order_id: a second invoice would be stored, and the demo would find it.
CREATE TABLE shop.invoices (
  number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id  text COLLATE "C" NOT NULL REFERENCES shop.orders,
  customer  text NOT NULL,
  cents     bigint NOT NULL,
  issued_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
