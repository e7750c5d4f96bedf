--
-- First rows: the product works out of the box, operators narrow it
--

-- the settings of every queue that has no row of its own
insert into fairq.queues (queue) values ('*');

-- being in a group gives the right to call; these rows say for which queues and tenants (one role may play two parts)
insert into fairq.access_grants (role_name, verb, queue, tenant)
values
    ('fairq_worker', 'claim', '*', '*'),
    ('fairq_producer', 'enqueue', '*', '*'),
    ('fairq_producer', 'cancel', '*', '*'),
    ('fairq_operator', 'cancel', '*', '*'),
    ('fairq_tenant', 'enqueue', '*', '@own'),
    ('fairq_tenant', 'cancel', '*', '@own')
on conflict do nothing;
