"""The application: an order, and the job that sends its letter, in one transaction of the caller."""

from django.db import connection, models, transaction


class Order(models.Model):
    order_id = models.BigAutoField(primary_key=True)
    tenant = models.TextField()
    letter = models.BigIntegerField()

    class Meta:
        db_table = "orders"


class Sent(models.Model):
    sent_id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    letter = models.BigIntegerField()

    class Meta:
        db_table = "sent"


ENQUEUE = """
    select job_id from fairq.enqueue_job(
        p_queue => 'mail', p_tenant => %s, p_task => 'send',
        p_payload => jsonb_build_object('letter', %s::bigint), p_key => %s)"""


def place(tenant, letter):
    """Save the order and its job; workers see the job once the outermost transaction commits, else never."""
    with transaction.atomic(), connection.cursor() as cursor:
        order = Order.objects.create(tenant=tenant, letter=letter)
        # the key makes one job of an order, however often this is repeated
        cursor.execute(ENQUEUE, [tenant, letter, f"order {order.order_id}"])
        return cursor.fetchone()[0]
