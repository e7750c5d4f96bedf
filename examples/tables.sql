-- What the examples work on: an order enqueues its letter in one transaction, a worker writes down what it has sent.
create table orders (
    order_id bigint generated always as identity primary key,
    tenant text not null,
    letter bigint not null
);

create table sent (
    sent_id bigint generated always as identity primary key,
    job_id bigint not null,
    letter bigint not null
);
