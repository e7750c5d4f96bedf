"""The application: an order, and the job that sends its letter, in one transaction of the caller."""

import os

from sqlalchemy import BigInteger, Identity, create_engine, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

# nothing is prepared, for the sake of pgbouncer
url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
engine = create_engine(url, connect_args={"prepare_threshold": None})
Session = sessionmaker(engine)


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger}


class Order(Base):
    __tablename__ = "orders"
    order_id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    tenant: Mapped[str]
    letter: Mapped[int]


class Sent(Base):
    __tablename__ = "sent"
    sent_id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    job_id: Mapped[int]
    letter: Mapped[int]


ENQUEUE = text("""
    select job_id from fairq.enqueue_job(
        p_queue => 'mail', p_tenant => :tenant, p_task => 'send',
        p_payload => jsonb_build_object('letter', cast(:letter as bigint)), p_key => :key)""")


def place(session, tenant, letter):
    """Add the order and its job; workers see the job once the caller commits, and never if it rolls back."""
    order = Order(tenant=tenant, letter=letter)
    session.add(order)
    session.flush()
    # the key makes one job of an order, however often this is repeated
    return session.scalars(ENQUEUE, {"tenant": tenant, "letter": letter, "key": f"order {order.order_id}"}).one()
